"""The messages and services of `tidegate.v1`, generated from proto/tidegate/v1. Never edited."""
