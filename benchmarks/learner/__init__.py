"""The learner's step against padded batches and against TRL's trainer step: same model, batch and optimizer."""
