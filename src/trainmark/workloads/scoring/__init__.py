"""How speech is scored by networks of others: what listeners might say of it, and which words a recogniser hears."""
