/* What people read and write in the picker: labels, numbers with separators, "32k", "100 GB". */
"use strict";
(() => {
  const LABELS = {
    SERVED_MODEL_NAME: "Name for clients", DFLASH_DRAFTER: "Drafter", DFLASH_NUM_SPEC_TOKENS: "Drafted tokens per step",
    DRAFT_ATTENTION_BACKEND: "Drafter’s attention kernels", ATTENTION_BACKEND: "Attention kernels", MAX_MODEL_LEN: "Context",
    MAX_NUM_SEQS: "Users at once", MAX_NUM_BATCHED_TOKENS: "Tokens per step", GPU_MEMORY_UTILIZATION: "Share of the memory",
    QUANTIZATION: "Quantization", DTYPE: "Data type", KV_CACHE_DTYPE: "KV cache", ENFORCE_EAGER: "Without CUDA graphs",
    ENABLE_PREFIX_CACHING: "Prefix caching", LOAD_FORMAT: "How weights are loaded", TRUST_REMOTE_CODE: "Trust the model’s code",
    ENABLE_AUTO_TOOL_CHOICE: "Tool calls", TOOL_CALL_PARSER: "Parser for tool calls", REASONING_PARSER: "Parser for reasoning",
    LIMIT_MM_PER_PROMPT: "Images and videos per prompt", PROTECT_METRICS: "Key for /metrics too",
    HOST: "Address", PORT: "Port", WARMUP: "Warm-up rounds", COMPILERS: "Compilers at once", HANG_LIMIT: "End a stuck server after, s", MEMORY_FLOOR: "Memory the host keeps, GB",
    ENABLE_TURBOQUANT: "Compress the KV cache", TQ_MODE: "TurboQuant mode", TQ_KEY_BITS: "Bits per key",
    TQ_VALUE_BITS: "Bits per value", TQ_RING_CAPACITY: "TurboQuant ring", TQ_INITIAL_LAYERS: "TurboQuant first layers",
    CHECKS: "When a check fails", SKIP_CHECKS: "Checks to skip",
  };
  const TOKENS = ["MAX_MODEL_LEN", "MAX_NUM_BATCHED_TOKENS"];
  const MOST = 2 ** 31 - 1;
  const label = (name) => LABELS[name] ?? name;

  /** Put separators into long numbers, but not into values to type: MAX_MODEL_LEN=16384. */
  const grouped = (text) =>
    String(text).replace(/(?<![\w=.@/-])[0-9]{5,}(?!\w|\.[0-9])/g, (digits) => digits.replace(/\B(?=([0-9]{3})+$)/g, ","));

  const ungrouped = (text) => (/^[0-9]{1,3}([,.'_\s][0-9]{3})+(?![0-9])/.test(text) ? text.replace(/[,.'_\s](?=[0-9]{3})/g, "") : text);

  /** Return a number as the container reads it: 32k is 32768, 16,384 is 16384, 80 % is 0.8. Other words stay. */
  function plain({ name, kind }, text) {
    const words = text.trim();
    if (kind === "fraction") {
      const [, number, percent] = /^([0-9]*[.,]?[0-9]+)(\s*%)?$/.exec(words) ?? [];
      if (!number) return text;
      const value = number.replace(",", ".");
      return percent ? String(Number(value) / 100) : value;
    }
    if (kind !== "whole") return text;
    const number = ungrouped(words);
    const [, count, unit] = (TOKENS.includes(name) && /^([0-9]+(?:\.[0-9]+)?)\s*([km])i?$/i.exec(number)) || [];
    return unit ? String(Math.round(count * 1024 ** (unit.toLowerCase() === "k" ? 1 : 2))) : number;
  }

  /** Return the bytes of 100, 100 GB, 93 GiB or 0.1 TB; null for anything else. */
  function bytes(text) {
    const found = /^([0-9]+(?:[.,][0-9]+)?)\s*(?:([mgt])(i?)b?)?$/i.exec(ungrouped(text.trim()));
    if (!found) return null;
    const [, number, unit = "g", binary] = found;
    return Number(number.replace(",", ".")) * (binary ? 1024 : 1000) ** " .mgt".indexOf(unit.toLowerCase());
  }

  /** Say which numbers a setting of an image takes; empty for other settings. */
  function range(image, { name, kind, minimum, maximum, unset }) {
    if (!["whole", "fraction"].includes(kind)) return "";
    const most = (name === "MAX_MODEL_LEN" && image.facts.memory?.context) || maximum;
    const words = most === null || most >= MOST ? `${minimum ?? 0} or more` : `${minimum ?? 0} to ${most}`;
    return grouped(unset ? `${words}, or ${unset}` : words);
  }

  Object.assign(ImagePicker, { label, grouped, plain, bytes, range });
})();
