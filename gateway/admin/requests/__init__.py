"""What tenants asked: lists, all that is known of one request, and where its time went."""
