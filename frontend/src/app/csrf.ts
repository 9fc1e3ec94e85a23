// The CSRF token that Django wants back with every request that changes something.

const COOKIE = /(?:^|;\s*)starloom_csrf=([^;]+)/;

export function csrfToken(): string {
  const cookie = COOKIE.exec(document.cookie)?.[1];
  if (cookie !== undefined) return decodeURIComponent(cookie);
  const field = document.querySelector<HTMLInputElement>("input[name=csrfmiddlewaretoken]");
  return field?.value ?? "";
}
