"""The suites' own assertions are shown in full, too."""

import pytest

pytest.register_assert_rewrite("tests.contract.pin_store_contract")
