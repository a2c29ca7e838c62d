"""Copied to ann_benchmarks/algorithms/stratann/ together with config.yml and Dockerfile."""

from stratann.integrations.ann_benchmarks import Stratann

__all__ = ["Stratann"]
