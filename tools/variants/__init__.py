"""Training, saving and measuring variants of one base model; driven by tools/train_variants.py."""
