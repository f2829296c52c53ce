"""Traffic: the requests of the scenarios, sent to a server, and the transcripts of what came back."""
