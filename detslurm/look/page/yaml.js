// Plain data as YAML, as people write a configuration.

export function yaml(value, indent = "") {
  if (Array.isArray(value) && value.length) return value.map((one) => `${indent}- ${inner(one, `${indent}  `).trimStart()}`).join("\n");
  if (value && typeof value === "object" && Object.keys(value).length) {
    return Object.entries(value).map(([key, one]) => `${indent}${scalar(key)}:${nested(one) ? `\n${yaml(one, `${indent}  `)}` : ` ${scalar(one)}`}`).join("\n");
  }
  return indent + scalar(value);
}

function inner(value, indent) {
  return nested(value) ? yaml(value, indent) : scalar(value);
}

function nested(value) {
  return value !== null && typeof value === "object" && Object.keys(value).length > 0;
}

// A text that YAML would take for something else stands in quotes.
function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  if (/^-?[1-9]\d{15,}$/.test(value) && !Number.isSafeInteger(Number(value))) return value; // an integer that JavaScript would round
  const safe = /^[A-Za-z_/.][\w ./@+()-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|\.inf|\.nan|~)$/i.test(value) && !/\s$/.test(value);
  return safe ? value : JSON.stringify(value);
}
