"""The parts of a worker (`jsclient.Worker`): where messages come from, how handlers are called, what is answered."""
