"""The services that Envoy speaks: external processing (with the body rewritten) and external authorization."""
