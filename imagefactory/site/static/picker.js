/* The picker: choices and settings in, a verdict and commands out. All state is in the address. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const section = document.getElementById("picker");
  const data = globalThis.pickerData;
  if (!section || !data?.images.length) return;
  const { load, judge, outputs, given, head, allowed, label, grouped, plain, bytes, range, make, drawMemory } = ImagePicker;
  const element = (id) => document.getElementById(`picker-${id}`);
  const FIRST = ["MAX_MODEL_LEN", "GPU_MEMORY_UTILIZATION", "MAX_NUM_SEQS", "KV_CACHE_DTYPE", "DFLASH_DRAFTER", "DFLASH_NUM_SPEC_TOKENS", "ENABLE_TURBOQUANT", "PORT"];
  const TABS = { docker: "docker run", compose: "compose", sparkrun: "sparkrun", eugr: "eugr", curl: "curl", python: "Python" };
  const GB = 1e9;
  const PUBLISHED = ["current", "update waiting"];
  const state = { model: "", machine: "", version: "", free: "", tab: "docker", environment: {} };

  const unique = (values) => [...new Set(values)];
  const fitting = (wanted, among, fallback) => (among.includes(wanted) ? wanted : among.includes(fallback) ? fallback : among[0]);
  const imagesOf = (model) => data.images.filter((image) => image.model === model);

  /** Choose what there is: a model's machines, and the versions on that machine. */
  function settle() {
    state.model = fitting(state.model, unique(data.images.map((image) => image.model)), section.dataset.model || data.model);
    const machines = data.machines.map((machine) => machine.name).filter((name) => imagesOf(state.model).some((image) => image.machine === name));
    const asked = data.machines.find(({ name }) => name === state.machine);
    state.missing = asked && !machines.includes(asked.name) ? asked.title : "";
    state.machine = fitting(state.machine, machines, machines[0]);
    const versions = imagesOf(state.model).filter((image) => image.machine === state.machine).map((image) => image.version);
    state.version = fitting(state.version, versions, data.version);
    if (!Object.hasOwn(TABS, state.tab)) state.tab = "docker";
    return { machines, versions };
  }

  const isState = (hash) => /^#\w+=/.test(hash);

  function readAddress() {
    const found = Object.fromEntries(new URLSearchParams(isState(location.hash) ? location.hash.slice(1) : ""));
    const { model = section.dataset.model, machine = "", version = "", free = "", tab = "docker", ...environment } = found;
    Object.assign(state, { model, machine, version, free, tab, environment });
  }

  function address(image) {
    const words = { model: state.model, machine: state.machine, version: state.version };
    if (state.free) words.free = state.free;
    if (state.tab !== "docker") words.tab = state.tab;
    return `#${new URLSearchParams({ ...words, ...given(image, offeredOnly(image)) })}`;
  }

  const offered = (image) => image.settings.filter(({ name }) => !data.not_offered.includes(name));
  const offeredOnly = (image) => {
    const names = [...offered(image).map(({ name }) => name), ...Object.keys(image.refused)];
    const own = Object.entries(state.environment).filter(([name]) => names.includes(name));
    return Object.fromEntries([...own, ...Object.entries(head(image))].map(([name, value]) => [name, image.byName[name] ? plain(image.byName[name], value) : value]));
  };

  function current() {
    const entry = imagesOf(state.model).find((image) => image.machine === state.machine && image.version === state.version);
    const machine = { ...data.machines.find(({ name }) => name === state.machine) };
    const free = bytes(state.free);
    if (free !== null) machine.free = free;
    if (free > (machine.total ?? 0)) machine.total = free;
    return { image: load(data, entry), machine };
  }

  function options(select, values, chosen, title = (value) => value) {
    select.replaceChildren(...values.map((value) => {
      const option = make("option", { value }, title(value));
      option.selected = value === chosen;
      return option;
    }));
  }

  const versionTitle = (name) => {
    const image = data.images.find(({ version }) => version === name);
    return `${data.servers[image.server].title} ${name.replace(/^sglang-/, "")}`;
  };

  function control(image, setting) {
    const value = state.environment[setting.name] ?? "";
    const id = `picker-set-${setting.name}`;
    const assumed = setting.default || setting.unset || "the server decides";
    const about = { id, name: setting.name, "aria-describedby": `${id}-about` };
    let field;
    if (setting.choices.length || setting.kind === "switch") {
      field = make("select", about);
      const known = setting.kind === "switch" ? ["1", "0"] : setting.choices;
      const shown = { "": `default (${setting.kind === "switch" ? ({ 1: "on", 0: "off" })[setting.default] ?? assumed : assumed})` };
      if (setting.kind === "switch") Object.assign(shown, { 1: "on", 0: "off" });
      const values = ["", ...known, ...(value && !known.includes(value) ? [value] : [])];
      options(field, values, value, (word) => shown[word] ?? word);
    } else {
      const numeric = { whole: "numeric", fraction: "decimal" }[setting.kind] ?? null;
      field = make("input", { ...about, type: "text", inputmode: numeric, placeholder: grouped(assumed), autocomplete: "off", spellcheck: "false" });
      field.value = value;
      if (setting.name === "DFLASH_DRAFTER") {
        const list = make("datalist", { id: `${id}-list` }, ...["off", ...(image.document.drafters ?? []).map(({ repo }) => repo)].map((word) => make("option", { value: word })));
        field.setAttribute("list", list.id);
        return [field, list];
      }
    }
    return [field];
  }

  const changed = (setting) => Boolean((state.environment[setting.name] ?? "").trim()) && state.environment[setting.name].trim() !== setting.default;

  function drawSettings(image) {
    const row = (setting) => {
      const id = `picker-set-${setting.name}`;
      const numbers = range(image, setting);
      const accepted = setting.kind === "switch" || setting.choices.length || numbers ? "" : ` Accepts ${allowed(image, setting)}.`;
      return make("div", { class: "picker-setting", "data-setting": setting.name },
        make("label", { for: id }, label(setting.name), " ", make("code", {}, setting.name)),
        ...control(image, setting),
        make("p", { id: `${id}-about`, class: "picker-about" },
          ...(numbers ? [make("span", { class: "picker-range" }, `${numbers}.`), " "] : []), setting.description.replaceAll("`", "") + accepted));
    };
    const all = offered(image);
    const first = FIRST.map((name) => all.find((setting) => setting.name === name)).filter(Boolean);
    const rest = all.filter((setting) => !first.includes(setting));
    element("settings").replaceChildren(make("legend", {}, "Settings"), ...first.map(row));
    element("more").querySelector("div").replaceChildren(...rest.map(row));
    if (rest.some(changed)) element("more").open = true;
  }

  function drawChoices({ machines, versions }) {
    options(element("model"), unique(data.images.map((image) => image.model)), state.model);
    options(element("machine"), machines, state.machine, (name) => data.machines.find((machine) => machine.name === name).title);
    options(element("version"), versions, state.version, versionTitle);
    const { machine } = current();
    const free = element("free");
    free.value = state.free;
    free.disabled = !machine.capability;
    free.placeholder = machine.free ? (machine.free / GB).toFixed(1) : "not checked";
    element("free-about").textContent = machine.total ? `of ${(machine.total / GB).toFixed(1)} GB; also 100 GB or 93 GiB` : "";
  }

  const problem = (result, title, detail, remedy) => make("li", { class: `picker-${result}` }, make("strong", {}, title), ` ${grouped(detail)}`, ...(remedy ? [make("span", { class: "picker-remedy" }, grouped(remedy))] : []));

  /** Yield what stands in the verdict beside the container's own findings. */
  function* remarks({ image, settings, command }, sequences) {
    if (state.missing) yield problem("note", "Note:", `${state.model} has no image for ${state.missing}; this one is for another machine.`, "");
    for (const remark of command?.remarks ?? []) yield problem("note", "Note:", remark, "");
    if (image.byName.NODES?.default === "2") yield problem("note", "Two Sparks:", "this is the head’s command. The other one takes NODE_RANK=1; both take the head’s address on the cable as HEAD_ADDRESS.", "Read docs/two-sparks.md first.");
    const users = settings?.values.MAX_NUM_SEQS;
    if (sequences && users > sequences) {
      yield problem("note", "Users:", `${sequences} fit at once; ${users - sequences} would wait, if each needs the whole context.`, "");
    }
    if (image.answers && PUBLISHED.includes(image.state)) yield problem("note", "Answers:", image.answers.replace(/^answers /, ""), "");
    if (!PUBLISHED.includes(image.state)) {
      yield problem("note", "Image:", "nobody has published it, as far as this site knows.", `Build it: ./inv build --target ${image.target}`);
    } else if (image.state !== "current") {
      yield problem("note", "Image:", "its digest is from the registry’s catalog, which is not signed, and not what this commit makes.", `Check it: ./inv verify --image ${image.reference}`);
    }
  }

  const headline = (stops, odd, { state }) => {
    if (stops) return ["fail", "The container would refuse to start."];
    if (!PUBLISHED.includes(state)) return ["warn", "Not published: the container would start once you have built the image."];
    return odd ? ["warn", "The container would start, with a warning."] : ["ok", "The container would start."];
  };

  function drawVerdict(judged) {
    const { image, refusal, findings } = judged;
    const bad = findings.filter(({ result }) => result === "fail");
    const odd = findings.filter(({ result }) => result === "warn");
    const items = [];
    const unread = state.free && bytes(state.free) === null;
    if (unread) items.push(problem("fail", "Free memory:", `${state.free} is not an amount.`, "Write GB, such as 100 or 100 GB."));
    if (refusal) {
      const numbers = image.byName[refusal.setting] && range(image, image.byName[refusal.setting]);
      items.push(problem("fail", "Refused:", numbers ? `${refusal.what} It takes ${numbers}.` : refusal.what, refusal.remedy));
    }
    items.push(...bad.map(({ name, detail, remedy }) => problem("fail", `${name}:`, detail, remedy)));
    items.push(...odd.map(({ name, detail, remedy }) => problem("warn", `${name}:`, detail, remedy)));
    const memory = findings.find(({ name, result }) => name === "memory" && result === "ok")?.detail ?? "";
    const [sequences, fitting, length] = / \(([0-9.]+) sequences of ([0-9,]+)\)/.exec(memory) ?? [""];
    items.push(...remarks(judged, Math.floor(fitting ?? 0)));
    const [kind, words] = headline(unread || refusal || bad.length, odd.length, image);
    const fits = memory.replace(sequences, sequences && `: room for ${Math.floor(fitting)} users with ${length} tokens each`);
    const box = element("verdict");
    box.dataset.result = kind;
    box.replaceChildren(make("p", { class: `picker-headline picker-${kind}` }, words), ...(items.length ? [make("ul", {}, ...items)] : []),
      ...(fits ? [make("p", { class: "picker-about" }, `Memory: ${grouped(fits)}.`)] : []));
    const named = [refusal, ...bad].filter(Boolean).map(({ setting }) => setting);
    for (const field of section.querySelectorAll("[data-setting] input, [data-setting] select, #picker-free")) {
      if (named.includes(field.name) || (unread && field.id === "picker-free")) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  }

  function drawOutputs(judged) {
    for (const name of Object.keys(TABS)) element(`tab-${name}`).setAttribute("aria-pressed", String(name === state.tab));
    const text = judged.refusal ? "# The settings contradict what the image accepts: see above.\n" : outputs(judged, offeredOnly(judged.image))[state.tab];
    section.querySelector("#picker-panel code").textContent = text;
    element("copy").disabled = Boolean(judged.refusal);
    element("outputs").hidden = false;
  }

  function verdict() {
    const { image, machine } = current();
    const judged = judge(image, offeredOnly(image), machine);
    drawVerdict(judged);
    drawMemory(element("memory"), judged);
    drawOutputs(judged);
    return image;
  }

  let drawn = "";
  function draw() {
    const lists = settle();
    drawChoices(lists);
    const { image } = current();
    const now = JSON.stringify([image.target, state.environment]);
    if (now !== drawn) drawSettings(image);
    drawn = now;
    verdict();
  }

  /** Draw the state, and put it into the address. */
  let moving = "";
  function commit() {
    draw();
    const target = address(current().image);
    if (target === location.hash) return;
    moving = target;
    location.hash = target;
  }

  const form = element("form");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => take(event.target) && verdict());
  form.addEventListener("change", (event) => {
    const { id } = event.target;
    if (!take(event.target)) return;
    if (id.startsWith("picker-set-")) keep(event.target);
    commit();
    document.getElementById(id)?.focus({ preventScroll: true });
  });
  /** A changed setting is on the page already: there is no need to draw all of them again. */
  function keep(field) {
    const { image } = current();
    if (state.environment[field.name]) field.value = state.environment[field.name] = plain(image.byName[field.name], field.value);
    drawn = JSON.stringify([image.target, state.environment]);
  }
  function take(field) {
    if (field.id.startsWith("picker-set-")) {
      state.environment = { ...state.environment, [field.name]: field.value };
      if (!field.value.trim()) delete state.environment[field.name];
    } else if (["model", "machine", "version", "free"].includes(field.id.slice(7))) state[field.id.slice(7)] = field.value;
    else return false;
    settle();
    return true;
  }

  for (const [name, title] of Object.entries(TABS)) {
    const button = make("button", { type: "button", id: `picker-tab-${name}` }, title);
    button.addEventListener("click", () => {
      state.tab = name;
      commit();
    });
    section.querySelector(".picker-tabs").append(button);
  }

  element("reset").addEventListener("click", () => {
    Object.assign(state, { environment: {}, free: "" });
    commit();
  });
  addEventListener("hashchange", () => {
    const own = location.hash === moving;
    moving = "";
    if (own) return;
    if (!location.hash || isState(location.hash)) {
      readAddress();
      draw();
    }
  });

  form.hidden = false;
  readAddress();
  draw();
});
