"""llama.cpp's own HTTP server from the wheel xllamacpp: MODEL PORT KEYS VALUES, with the cache's types as
ggml names them (f16, q8_0, ...). Two slots of 2,048 tokens, flash attention, ended by a signal."""

import sys
import time

import xllamacpp


def cache_type(name):
    return getattr(xllamacpp.ggml_type, "GGML_TYPE_" + name.upper())


model, port, keys, values = sys.argv[1:5]
params = xllamacpp.CommonParams()
params.model.path = model
params.port = int(port)
params.cache_type_k = cache_type(keys)
params.cache_type_v = cache_type(values)
params.n_parallel = 2
params.n_ctx = 4096
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
while True:
    time.sleep(3600)
