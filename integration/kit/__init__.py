"""What the integration tests stand on: a real server, faults, hostile input, a judge.

Nothing here imports jsclient except the runner of the server process, so a defect of the
library cannot hide itself by bending its own test equipment.
"""
