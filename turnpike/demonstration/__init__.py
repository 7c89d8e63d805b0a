"""A tour with data: a data folder of its own, with a month of traffic that went through the real billing."""
