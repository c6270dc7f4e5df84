"""The Responses WebSocket behind its door: frames, lanes, and what a connection remembers."""
