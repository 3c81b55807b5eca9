"""What should a machine do on paper? Catalogue, matching, derivation, detection."""
