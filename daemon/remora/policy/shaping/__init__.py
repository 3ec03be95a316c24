"""How credit of shaped traffic is dealt out."""
