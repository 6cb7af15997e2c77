"""What `jsclient.server` is made of: the executable, the guard, the look whether it is ready, the freezing."""
