"""Others' engines behind our protocol: tokens go to them over HTTP, and what they bring is counted here."""
