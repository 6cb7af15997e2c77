"""Pull subscriptions: fetch and continuous reading (ADR-13, ADR-37)."""
