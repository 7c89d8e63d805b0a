"""What is wrong with an installation, found by looking at each part from the machine that it runs on."""
