"""Who sells and who buys: their profiles, countries, VAT ids, and the tax that follows from them."""
