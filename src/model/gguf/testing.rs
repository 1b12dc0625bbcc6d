//! Writes small GGUF files for tests, well-formed or not.

/// A file under construction. Every piece can be given as it is or left out.
#[derive(Clone)]
pub(crate) struct Builder {
    pub version: u32,
    entries: Vec<(String, Vec<u8>)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone)]
struct Tensor {
    name: String,
    sizes: Vec<u64>,
    kind: u32,
    offset: Option<u64>,
    data: Vec<u8>,
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

impl Builder {
    pub(crate) fn new() -> Self {
        Builder {
            version: 3,
            entries: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// A whole model that opens: one layer, 4 query and 2 key/value heads of 4 elements.
    pub(crate) fn model() -> Self {
        let mut tokens: Vec<String> = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
            .map(str::to_owned)
            .to_vec();
        tokens.extend(('!'..='~').map(String::from));
        tokens.extend(["ab", "abc"].map(str::to_owned));
        let types: Vec<i32> = (0..tokens.len())
            .map(|id| if id < 3 { 3 } else { 1 })
            .collect();
        let vocabulary = tokens.len() as u64;
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        Builder::new()
            .text("general.architecture", "llama")
            .u32("llama.block_count", 1)
            .u32("llama.context_length", 64)
            .u32("llama.embedding_length", 16)
            .u32("llama.feed_forward_length", 24)
            .u32("llama.attention.head_count", 4)
            .u32("llama.attention.head_count_kv", 2)
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "smollm")
            .texts("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", &types)
            .texts("tokenizer.ggml.merges", &["a b", "ab c"])
            .u32("tokenizer.ggml.eos_token_id", 2)
            .floats("token_embd.weight", &[16, vocabulary])
            .floats("output_norm.weight", &[16])
            .floats("blk.0.attn_norm.weight", &[16])
            .floats("blk.0.ffn_norm.weight", &[16])
            .floats("blk.0.attn_q.weight", &[16, 16])
            .floats("blk.0.attn_k.weight", &[16, 8])
            .floats("blk.0.attn_v.weight", &[16, 8])
            .floats("blk.0.attn_output.weight", &[16, 16])
            .floats("blk.0.ffn_gate.weight", &[16, 24])
            .floats("blk.0.ffn_up.weight", &[16, 24])
            .floats("blk.0.ffn_down.weight", &[24, 16])
    }

    /// An entry of any value type; an earlier one of the same key is replaced.
    pub(crate) fn entry(mut self, key: &str, kind: u32, value: Vec<u8>) -> Self {
        self = self.without(key);
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(value);
        self.entries.push((key.to_owned(), bytes));
        self
    }

    /// An entry beside one of the same key.
    pub(crate) fn doubled(mut self, key: &str) -> Self {
        let again = self.entries.iter().find(|(own, _)| own == key).cloned();
        self.entries.extend(again);
        self
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, string(value))
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, value.to_le_bytes().to_vec())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.entry(key, 6, value.to_le_bytes().to_vec())
    }

    pub(crate) fn bool(self, key: &str, value: bool) -> Self {
        self.entry(key, 7, vec![value.into()])
    }

    pub(crate) fn texts(self, key: &str, values: &[&str]) -> Self {
        let items = values.iter().flat_map(|text| string(text)).collect();
        self.array(key, 8, values.len() as u64, items)
    }

    pub(crate) fn i32s(self, key: &str, values: &[i32]) -> Self {
        let items = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.array(key, 5, values.len() as u64, items)
    }

    pub(crate) fn array(self, key: &str, kind: u32, count: u64, items: Vec<u8>) -> Self {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(count.to_le_bytes());
        bytes.extend(items);
        self.entry(key, 9, bytes)
    }

    /// Drops an entry.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.entries.retain(|(own, _)| own != key);
        self
    }

    /// A tensor of 32-bit floats (all 0.5); an earlier one of the same name is replaced.
    pub(crate) fn floats(self, name: &str, sizes: &[u64]) -> Self {
        let count: u64 = sizes.iter().product();
        let data = 0.5f32.to_le_bytes().repeat(count as usize);
        self.without_tensor(name).tensor(name, sizes, 0, None, data)
    }

    /// A tensor of any type, at a given offset or after the one before.
    pub(crate) fn tensor(
        mut self,
        name: &str,
        sizes: &[u64],
        kind: u32,
        offset: Option<u64>,
        data: Vec<u8>,
    ) -> Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            sizes: sizes.to_vec(),
            kind,
            offset,
            data,
        });
        self
    }

    /// Drops a tensor.
    pub(crate) fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// The file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut head = b"GGUF".to_vec();
        head.extend(self.version.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            head.extend(string(key));
            head.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            head.extend(string(&tensor.name));
            head.extend((tensor.sizes.len() as u32).to_le_bytes());
            head.extend(tensor.sizes.iter().flat_map(|size| size.to_le_bytes()));
            head.extend(tensor.kind.to_le_bytes());
            let offset = tensor.offset.unwrap_or(data.len() as u64);
            head.extend(offset.to_le_bytes());
            data.extend_from_slice(&tensor.data);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        head.resize(head.len().next_multiple_of(32), 0);
        head.extend(data);
        head
    }
}
