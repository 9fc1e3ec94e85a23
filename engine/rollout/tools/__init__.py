"""Tools that the policy may call: the contract (``base``), the built-in ones, and how a recipe names them."""
