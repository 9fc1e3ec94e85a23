// Plotly reads a little HTML in its texts: what is not ours to mark up goes through here.

/** Text that Plotly shows as it is. */
export function plain(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** What `plain` was given. */
export function unplain(text: string): string {
  return text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}
