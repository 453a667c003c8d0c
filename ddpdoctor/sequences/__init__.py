"""The calls of ranks as they are made: compared call by call while the ranks run. Pure: records in, differences out."""
