"""The tiny policy, a ``Qwen2_5_VLForConditionalGeneration`` of 0.6 M parameters; ``make tiny`` trains it."""
