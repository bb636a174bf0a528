"""One job's workers: what they and their supervisor say to each other, who belongs to the group, and the supervisor."""
