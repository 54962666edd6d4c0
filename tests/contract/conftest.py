"""The suites' own assertions are shown in full, too."""

import pytest

pytest.register_assert_rewrite("tests.contract.pin_store_contract")
pytest.register_assert_rewrite("tests.contract.flow_store_contract")
pytest.register_assert_rewrite("tests.contract.fact_store_contract")
