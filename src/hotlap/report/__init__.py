"""What people read: Runs as text for a terminal."""
