"""Whose turn it is: fair shares of engine time and slots between lanes, tenants and flows."""
