"""The network between client and server: proxies that record and harm, the wire format, rules and predicates."""
