/* The checks of the serve program that need no more than the settings and a machine's memory (memory.py, *_checks.py).
   The container itself checks driver, disk, shared memory, flags, port and key. */
"use strict";
(() => {
  const { python, matching, read, build, serverFacts, Refusal } = ImagePicker;
  const CHECKS = ["gpu", "driver", "kernels", "model", "drafter", "disk", "memory", "shm", "settings", "flags", "combination", "port", "api-key", "pair"];
  const finding = (name, result, detail, more = {}) => ({
    name, result, detail, setting: "", value: "", allowed: "", remedy: "", ...more,
  });
  const gb = (count) => `${python.tenths(count / 1e9)} GB`;
  const count = (number) => number.toLocaleString("en-US");
  const hundredths = (share) => Math.ceil(share * 100) / 100;

  /** Return the memory that a model needs, in bytes; null where unknown. */
  function needs({ image, command }) {
    const facts = image.facts.memory ?? {};
    const sizes = Object.entries(image.common.memory.compression);
    const factor = sizes.find(([name]) => command.cache.startsWith(name))?.[1] ?? 1;
    return {
      weights: facts.weights || null,
      drafter: command.speculative ? (facts.drafter ?? 0) : 0,
      perToken: facts.kv_per_token ? Math.trunc(facts.kv_per_token * factor) : null,
      perSequence: facts.kv_per_sequence ?? 0,
      context: facts.context ?? 0,
    };
  }

  /** Say how a start uses the memory, in figures for a picture. */
  function budget(start) {
    const { image, machine, settings } = start;
    const { share } = image.rules;
    const known = image.common.memory;
    const whole = share.of_free ? machine.free : machine.total;
    let room = machine.free;
    if (machine.unified) room = Math.min(machine.total - known.host_reserve, machine.free - known.last_reserve);
    if (!share.holds_working) room -= known.working;
    const need = needs(start);
    const utilization = settings.values.GPU_MEMORY_UTILIZATION || share.default;
    return {
      need, share, known, whole, utilization,
      most: Math.max(0, Math.floor((room / whole) * 100)) / 100,
      fixed: (need.weights ?? 0) + need.drafter + (share.holds_working ? known.working : 0),
      taken: utilization * whole,
      asked: settings.values.MAX_MODEL_LEN || need.context,
      contents: share.holds_working ? "weights and working memory" : "weights",
    };
  }

  function longest({ need, fixed, known }, taken) {
    if (need.weights === null || !need.perToken) return null;
    const room = taken - fixed - need.perSequence;
    const fitting = Math.max(0, Math.floor(room / need.perToken / known.step) * known.step);
    return need.context ? Math.min(fitting, need.context) : fitting;
  }

  function memory(start) {
    const { image, machine } = start;
    if (!image.facts.capability || !machine.capability) return [finding("memory", "skipped", "no GPU: only its memory is checked")];
    if (!machine.total || machine.free === null || machine.free === undefined) {
      return [finding("memory", "warn", "the machine's memory is unknown", { remedy: "Check it with `free -g`." })];
    }
    const plan = budget(start);
    const { need, whole, utilization, most, fixed, taken, asked, contents } = plan;
    const fail = (detail, setting, value, allowed, remedy) => [finding("memory", "fail", detail, { setting, value, allowed, remedy })];
    const share = python.float(utilization);
    const limit = `up to ${python.float(most)}`;
    if (utilization > most) {
      return fail(tooMuch(machine, plan), "GPU_MEMORY_UTILIZATION", share, limit, less(most, longest(plan, most * whole), asked));
    }
    if (need.weights !== null && fixed > taken) {
      const enough = hundredths(fixed / whole);
      let remedy = `Set GPU_MEMORY_UTILIZATION to ${python.float(enough)} or more.`;
      if (enough > most) {
        remedy = "This model is too large for this machine: choose a smaller or more compressed one";
        remedy += need.drafter ? `, or set DFLASH_DRAFTER=off to save ${gb(need.drafter)}.` : ".";
      }
      return fail(`${contents} need ${gb(fixed)}; ${share} of ${gb(whole)} is ${gb(taken)}`, "GPU_MEMORY_UTILIZATION", share, limit, remedy);
    }
    const fitting = longest(plan, taken);
    if (fitting !== null && asked && asked > fitting) {
      const enough = hundredths((fixed + need.perSequence + asked * (need.perToken ?? 0)) / whole);
      const other = enough <= most ? `, or GPU_MEMORY_UTILIZATION=${python.float(enough)} or more` : "";
      const detail = `${count(asked)} tokens do not fit into the KV cache: ${contents} (${gb(fixed)}) leave room for ${count(fitting)}`;
      return fail(detail, "MAX_MODEL_LEN", String(asked), `up to ${fitting}`, `Set MAX_MODEL_LEN=${fitting} or lower${other}.`);
    }
    return [finding("memory", "ok", fits(machine, plan))];
  }

  function tooMuch(machine, { share, known, whole, utilization, taken }) {
    let takes = `${python.float(utilization)} of ${gb(whole)} takes ${gb(taken)}`;
    if (!share.holds_working) takes += `, working memory ${gb(known.working)} more`;
    if (!machine.unified) return `${takes}, but only ${gb(machine.free)} are free`;
    return `the GPU shares the host's memory: ${takes}; ${gb(machine.free)} are available, and the host needs ${gb(known.host_reserve)} of the total`;
  }

  function less(most, fitting, asked) {
    let remedy = most > 0 ? `Set GPU_MEMORY_UTILIZATION=${python.float(most)}` : "Stop other programs that use the memory";
    if (fitting !== null && asked > fitting && fitting > 0) remedy += ` and MAX_MODEL_LEN=${fitting}`;
    else if (fitting !== null && asked) remedy += `; MAX_MODEL_LEN=${asked} fits then (up to ${count(fitting)})`;
    return `${remedy}.`;
  }

  function fits(machine, { need, fixed, taken, asked }) {
    const detail = `takes ${gb(taken)} of ${gb(machine.total)}, ${gb(machine.free)} available`;
    if (need.weights === null || !need.perToken) return `${detail}; the model's size is unknown before the download`;
    const tokens = Math.trunc((taken - fixed) / need.perToken);
    const sequences = asked ? ` (${python.tenths(tokens / asked)} sequences of ${count(asked)})` : "";
    return `${detail}; weights ${gb(need.weights + need.drafter)}, KV cache for about ${count(tokens)} tokens${sequences}`;
  }

  function gpu({ image, machine }) {
    const wanted = image.facts.capability;
    if (!wanted) return [finding("gpu", "ok", "not needed by this image")];
    if (!machine.capability) {
      const remedy = "Install the NVIDIA Container Toolkit on the host; start with `docker run --gpus all`.";
      return [finding("gpu", "fail", "no NVIDIA GPU is visible in the container", { remedy })];
    }
    if (machine.capability === wanted) return [finding("gpu", "ok", `${machine.title}, compute capability ${wanted}`)];
    const kin = machine.capability.split(".")[0] === wanted.split(".")[0] && image.facts.kernels !== "compiled";
    const detail = `${machine.title} has compute capability ${machine.capability}; the image is for ${wanted}`;
    const remedy = `Use the image for your GPU; this one is for ${image.facts.arch}.`;
    return [finding("gpu", kin ? "warn" : "fail", detail, { allowed: `compute capability ${wanted}`, remedy })];
  }

  const facts = ({ image, settings }, more) => ({
    values: { ...settings.values, version: image.version, weights: image.facts.weights ?? "", ...more },
    given: settings.given,
    atLeast: image.atLeast,
  });

  function kernels(start) {
    const { image, machine } = start;
    const compiled = image.facts.kernels === "compiled";
    const found = matching(image.rules.unloadable, facts(start, { capability: machine.capability }));
    if (found.length && !compiled) return found.map(({ detail, remedy }) => finding("kernels", "fail", detail, { remedy }));
    if (!image.facts.capability) return [finding("kernels", "ok", "for CPUs")];
    if (!machine.capability) return [finding("kernels", "skipped", "no GPU visible")];
    const made = `${image.facts.kernels ?? "upstream"} kernels of ${image.title} ${image.version}`;
    return [finding("kernels", "ok", `${made} for ${image.facts.capability}, GPU is ${machine.capability}`)];
  }

  function model({ image, settings, command }) {
    const [length, most] = [settings.values.MAX_MODEL_LEN, image.facts.memory?.context ?? 0];
    const found = [];
    if (length && most && length > most) {
      found.push(finding("model", "fail", `the model's context is limited to ${count(most)} tokens`, {
        setting: "MAX_MODEL_LEN", value: String(length), allowed: `up to ${most}`,
        remedy: `Set MAX_MODEL_LEN=${most} or lower.`,
      }));
    }
    if (image.document.generated && settings.text("LOAD_FORMAT") !== "dummy") {
      // A model that the factory generates has no weights.
      return [...found, finding("model", "fail", `${command.model} lacks *.safetensors`, {
        setting: "MODEL", value: command.model, allowed: "a complete model folder",
        remedy: "Download the model again; the last download was probably interrupted.",
      })];
    }
    if (command.model.startsWith("/")) return [...found, finding("model", "ok", command.model)];
    const remedy = "Unset HF_HUB_OFFLINE, or mount the model and set MODEL_PATH.";
    const more = { setting: "MODEL", value: command.model, remedy };
    return [...found, finding("model", "ok", `${command.model} is not downloaded yet`, more)];
  }

  function drafter({ image, command }) {
    const named = command.speculative?.model;
    if (!named) return [finding("drafter", "ok", "none")];
    if (/^[/.~]/.test(named)) {
      return [finding("drafter", "fail", `${named} has no config.json`, {
        setting: "DFLASH_DRAFTER", value: named, allowed: "a drafter that was trained for the model",
        remedy: "Set DFLASH_DRAFTER to the model's own drafter, or to off.",
      })];
    }
    if ((image.document.drafters ?? []).some((entry) => entry.repo === named)) {
      return [finding("drafter", "ok", `${named} was trained for this model`)];
    }
    return [finding("drafter", "warn", `${named} may not fit ${command.model}: it cannot be checked before the download`, {
      setting: "DFLASH_DRAFTER", value: named, remedy: "Use a drafter that was trained for this model, or set DFLASH_DRAFTER=off.",
    })];
  }

  function combination(start) {
    const { image, machine, settings, command } = start;
    const capability = machine.capability || image.facts.capability;
    const hybrid = Boolean(image.facts.memory?.hybrid);
    const more = { ...serverFacts(image, settings, command), capability, hybrid };
    const found = matching(image.rules.combinations, facts(start, more));
    if (found.length) return found.map(({ result, detail, ...rule }) => finding("combination", result, detail, rule));
    return [finding("combination", "ok", `none that is known to fail with ${image.title} ${image.version}`)];
  }

  const JUDGED = { gpu, kernels, model, drafter, memory, combination };

  function run(start) {
    const { settings } = start;
    const skipped = settings.values.SKIP_CHECKS ?? [];
    const unknown = skipped.find((name) => !CHECKS.includes(name));
    if (unknown !== undefined) {
      throw new Refusal("bad-value", `There is no check ${python.repr(unknown)}.`, {
        setting: "SKIP_CHECKS", value: skipped.join(","), allowed: CHECKS.join(", "), remedy: "Name one of these checks.",
      });
    }
    const mode = settings.text("CHECKS");
    return Object.entries(JUDGED).flatMap(([name, check]) => {
      if (mode === "off" || skipped.includes(name)) {
        return [finding(name, "skipped", skipped.includes(name) ? "skipped by SKIP_CHECKS" : "CHECKS=off")];
      }
      const turned = { warn: ["fail", "warn"], strict: ["warn", "fail"] }[mode] ?? [];
      return check(start).map((found) => (found.result === turned[0] ? { ...found, result: turned[1] } : found));
    });
  }

  /** Judge a start as the container would: the refusal, or the command with its findings. */
  function judge(image, environment, machine) {
    try {
      const settings = read(image, environment);
      const command = build(image, settings);
      const start = { image, machine, settings, command };
      return { ...start, refusal: null, findings: run(start) };
    } catch (problem) {
      if (!(problem instanceof Refusal)) throw problem;
      const { error, what, setting, value, allowed, remedy } = problem;
      return { image, machine, refusal: { error, what, setting, value, allowed, remedy }, findings: [] };
    }
  }

  Object.assign(ImagePicker, { judge, budget });
})();
