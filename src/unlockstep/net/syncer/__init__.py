"""The syncer's end of the wire: its resources, the bodies it holds, its connections, and the one that stands by."""
