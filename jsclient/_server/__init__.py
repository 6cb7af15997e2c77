"""What `jsclient.server` is made of: the executable, the guard around the process, the look whether it is ready."""
