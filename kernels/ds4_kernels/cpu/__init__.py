"""DeepSeek V4 for vLLM on a CPU: reference operators in float32 and what vLLM needs to use them."""
