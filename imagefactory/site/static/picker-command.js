/* Builds the server's command from settings (images/serve/program/command.py, servers/<name>.py). */
"use strict";
(() => {
  const { python, matching, Refusal } = ImagePicker;

  /** Return a flag with its value; nothing if the server assumes that value. */
  function flagWords(flag, value, assumed, kind = "") {
    const isObject = value !== null && typeof value === "object";
    const words = kind === "fraction" && value !== null ? python.float(value) : python.str(value);
    if (value === null || value === undefined || (!isObject && words === assumed)) return [];
    if (value === true) return [flag];
    if (value === false) return ["True", "None"].includes(assumed) ? [`--no-${flag.slice(2)}`] : [];
    return [flag, isObject ? python.json(value) : words];
  }

  function moreFlags(image) {
    return Object.entries(image.facts.flags ?? {}).flatMap(([name, value]) => flagWords(`--${name.replaceAll("_", "-")}`, value, ""));
  }

  /** Return the drafter's method, model, tokens, backend and revision; null without a drafter. */
  function drafterOf(image, settings) {
    const model = settings.text("DFLASH_DRAFTER");
    if (!model) return null;
    const known = (image.document.drafters ?? []).find((entry) => entry.repo === model) ?? {};
    const own = (name, key) => (settings.given.has(name) ? settings.values[name] : known[key] || settings.values[name]);
    return {
      method: known.method ?? "dflash",
      model,
      num_speculative_tokens: own("DFLASH_NUM_SPEC_TOKENS", "tokens") || 15,
      attention_backend: own("DRAFT_ATTENTION_BACKEND", "attention_backend") || "auto",
      revision: known.revision ?? "",
      config: known.config ?? {},
    };
  }

  function base(image, settings) {
    const model = image.document.model;
    const names = settings.text("SERVED_MODEL_NAME").split(",").filter(Boolean);
    return { model, revision: image.document.revision ?? "", names: names.length ? names : [model] };
  }

  function start(words, { model, revision, names }) {
    if (revision) words.push("--revision", revision);
    if (names.length > 1 || names[0] !== model) words.push("--served-model-name", ...names);
    return words;
  }

  function turboquant(image, settings) {
    const mode = settings.text("TQ_MODE") || "hybrid";
    if (settings.values.ENABLE_TURBOQUANT !== true) return ["", []];
    if (["off", "capture_only"].includes(mode)) return ["", [`TQ_MODE=${mode}: the KV cache is not compressed`]];
    const [keys, values] = [settings.values.TQ_KEY_BITS || 4, settings.values.TQ_VALUE_BITS || 4];
    const known = Object.entries(image.rules.turboquant).map(([bits, name]) => [...bits.split("/").map(Number), name]);
    const enough = known.filter(([key, value]) => key >= keys && value >= values);
    const [, , chosen] = enough.reduce((one, other) => (other[0] + other[1] < one[0] + one[1] ? other : one), enough[0] ?? known.find(([key]) => key === 8));
    const remarks = [];
    if (!known.some(([key, value]) => key === keys && value === values)) {
      remarks.push(`vLLM's TurboQuant has no ${keys}-bit keys with ${values}-bit values; ${chosen}, the nearest, is used`);
    }
    if (mode === "full_tq") remarks.push("TQ_MODE=full_tq: vLLM's TurboQuant has only one mode");
    const ignored = ["TQ_RING_CAPACITY", "TQ_INITIAL_LAYERS"].filter((name) => settings.given.has(name));
    if (ignored.length) remarks.push(`${ignored.join(" and ")} ignored: vLLM's TurboQuant has no such option`);
    return [chosen, remarks];
  }

  function vllm(image, settings) {
    const [compressed, remarks] = turboquant(image, settings);
    const cache = compressed || settings.text("KV_CACHE_DTYPE");
    const about = base(image, settings);
    const words = start([about.model], about);
    const done = new Set(["MODEL", "MODEL_PATH", "SERVED_MODEL_NAME", "KV_CACHE_DTYPE"]);
    if (cache.startsWith("turboquant_") && settings.text("ATTENTION_BACKEND") && !settings.given.has("ATTENTION_BACKEND")) {
      remarks.push("TurboQuant brings its own attention: ATTENTION_BACKEND is not used");
      done.add("ATTENTION_BACKEND");
    }
    for (const { name, flag, kind, server_default: assumed } of image.settings) {
      if (flag && !done.has(name)) words.push(...flagWords(flag, settings.values[name], assumed, kind));
    }
    words.push(...moreFlags(image));
    if (cache && cache !== "auto") words.push("--kv-cache-dtype", cache);
    const speculative = vllmDrafter(image, settings, cache);
    if (speculative) words.push("--speculative-config", python.json(speculative));
    return { ...about, words, speculative, cache, remarks };
  }

  function vllmDrafter(image, settings, cache) {
    const drafter = drafterOf(image, settings);
    if (!drafter) return null;
    const { attention_backend: backend, revision, config, ...described } = drafter;
    if (backend !== "auto" && image.atLeast("0.21")) described.attention_backend = backend;
    if (revision) described.revision = revision;
    if (cache && cache !== "auto" && described.method !== "mtp" && image.atLeast("0.26")) described.kv_cache_dtype = "auto";
    return { ...described, ...config };
  }

  function sglang(image, settings) {
    const spelled = (name, value) => (typeof value === "string" ? (image.rules.spelled[name]?.[value] ?? value) : value);
    const about = base(image, settings);
    const words = start(["--model-path", about.model], about);
    for (const setting of image.settings) {
      if (!["MODEL", "MODEL_PATH", "SERVED_MODEL_NAME"].includes(setting.name)) {
        words.push(...sglangWords(setting, settings, spelled));
      }
    }
    words.push(...moreFlags(image));
    const speculative = drafterOf(image, settings);
    if (speculative) speculative.attention_backend = spelled("DRAFT_ATTENTION_BACKEND", speculative.attention_backend);
    refuse(image, settings, about.names, speculative);
    if (speculative) words.push(...sglangDrafter(image, speculative));
    words.push("--model-type", "llm", "--enable-metrics");
    return { ...about, words, speculative, cache: spelled("KV_CACHE_DTYPE", settings.text("KV_CACHE_DTYPE")), remarks: [], spelled };
  }

  function sglangWords({ name, flag, kind, server_default: assumed }, settings, spelled) {
    const value = settings.values[name];
    if (name === "ENFORCE_EAGER") {
      return value === true ? ["decode", "prefill"].flatMap((phase) => [`--cuda-graph-backend-${phase}`, "disabled"]) : [];
    }
    if (name === "ENABLE_PREFIX_CACHING") return value === false ? ["--disable-radix-cache"] : [];
    if (name === "TOOL_CALL_PARSER" && settings.values.ENABLE_AUTO_TOOL_CHOICE === false) return [];
    return flag ? flagWords(flag, spelled(name, value), assumed, kind) : [];
  }

  function sglangDrafter(image, drafter) {
    const [words, chain] = [["--speculative-algorithm", image.rules.methods[drafter.method]], drafter.method === "mtp"];
    if (!chain || drafter.model !== image.document.model) {
      words.push("--speculative-draft-model-path", drafter.model);
      if (drafter.revision) words.push("--speculative-draft-model-revision", drafter.revision);
    }
    if (chain) words.push("--speculative-num-steps", String(drafter.num_speculative_tokens), "--speculative-eagle-topk", "1");
    words.push("--speculative-num-draft-tokens", String(drafter.num_speculative_tokens + 1));
    if (drafter.attention_backend !== "auto") words.push("--speculative-draft-attention-backend", drafter.attention_backend);
    return words;
  }

  function refuse(image, settings, names, drafter) {
    const values = {
      version: image.version, served_names: names.join(","), several_names: names.length > 1,
      method: drafter?.method ?? "", drafter: drafter?.model ?? "",
    };
    const [rule] = matching(image.rules.refusals, { values, given: settings.given, atLeast: image.atLeast });
    if (rule) throw new Refusal(rule.error, rule.what, rule);
  }

  /** Return what a server's rules ask for beyond the settings. */
  const FACTS = {
    vllm: (settings, { cache, speculative: drafter }) => ({
      cache: cache === "auto" ? "" : cache,
      drafter: drafter?.method === "dflash" ? drafter.model : "",
      draft_backend: drafter?.attention_backend ?? "auto",
      draft_cache: drafter?.kv_cache_dtype || cache,
      sleeps: false,
    }),
    sglang: (settings, { spelled, speculative: drafter }) => ({
      attention: spelled("ATTENTION_BACKEND", settings.text("ATTENTION_BACKEND")),
      draft_backend: drafter?.attention_backend ?? "",
      drafter: drafter?.model ?? "",
      method: drafter?.method ?? "",
      stages: "1",
      grammar: "",
    }),
  };

  const BUILD = { vllm, sglang };
  const build = (image, settings) => BUILD[image.server](image, settings);
  const serverFacts = (image, settings, command) => FACTS[image.server](settings, command);
  Object.assign(ImagePicker, { build, serverFacts });
})();
