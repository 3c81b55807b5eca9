"""Which ceiling did the run hit, how far below it did it stay, why, and what should change?"""
