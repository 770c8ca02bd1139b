"""Hidden-state capture inside a vLLM worker process.

Imported only where a model lives: everything here may use torch, nothing here imports vllm at
module level.

- ``stack``    finds the decoder layers of any model
- ``residual`` finds out how those layers carry their residual, by asking the model's own final norm
- ``batch``    reads which row of a step belongs to which request, on either model runner
- ``recorder`` keeps the states of a call and hands them out by request
"""
