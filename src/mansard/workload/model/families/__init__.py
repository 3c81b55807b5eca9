"""One module per kind of family: dense decoders, experts, latent attention, hybrids, encoders, towers, diffusion."""
