"""Services: endpoints that answer requests, and their discovery."""
