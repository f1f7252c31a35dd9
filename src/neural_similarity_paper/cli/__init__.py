"""The commands `nsim table`, `reproduce`, `record` and `theory`."""
