"""Pull subscriptions and consumers: fetching batches, and reading continuously (ADR-13, ADR-37)."""
