"""Schema versions, forward only. A version that was released is never edited; a change is a new file in versions."""
