"""How the page looks: its styles, in a light and a dark form, with the fonts of the visitor's system."""

from typing import Any

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

CSS = """
.fp-stage {
  --fp-revealed: #00573f; --fp-revealed-paper: #cdf0e3; --fp-remasked: #8f3a00; --fp-remasked-paper: #ffe1cc;
  --fp-masked: #5b6472; --fp-masked-paper: #eceff3; --fp-0: #0065a3; --fp-1: #a3327a; --fp-2: #00734f; --fp-3: #8a5a00;
}
.dark .fp-stage {
  --fp-revealed: #7df0cb; --fp-revealed-paper: #0b4a38; --fp-remasked: #ffb585; --fp-remasked-paper: #5a2a0a;
  --fp-masked: #aab3c0; --fp-masked-paper: #2a313c; --fp-0: #6cc4ff; --fp-1: #f09acb; --fp-2: #5fdcb0; --fp-3: #f0b955;
}
.fp-head h1 { font-size: 1.5rem; line-height: 1.25; font-weight: 700; margin: 0 0 .25rem; }
.fp-head p { margin: 0; max-width: 90ch; color: var(--body-text-color); }
.fp-stage { color: var(--body-text-color); font-size: 1rem; }
.fp-sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 1rem; }
.fp-side { border: 1px solid var(--border-color-primary); border-radius: 10px; padding: .75rem 1rem; min-width: 0;
  background: var(--background-fill-primary); }
.fp-side h3 { margin: 0 0 .5rem; font-size: 1rem; font-weight: 650; }
.fp-side h3 .fp-key { display: inline-block; min-width: 1.5em; text-align: center; border-radius: 5px; color: #fff;
  margin-right: .4em; }
.fp-key-0 { background: #0065a3; } .fp-key-1 { background: #a3327a; }
.fp-facts { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .75rem 0 0; padding: .5rem 0 0;
  border-top: 1px solid var(--border-color-primary); font-variant-numeric: tabular-nums; }
.fp-facts div { display: flex; flex-direction: column-reverse; }
.fp-facts dt { font-size: .8rem; color: var(--fp-masked); }
.fp-facts dd { margin: 0; font-weight: 600; }
.fp-text { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.75; margin: 0; font-size: 1.05rem;
  font-family: Georgia, "Times New Roman", serif; }
.fp-token { border-radius: 3px; padding: 1px 0; }
.fp-token.fp-masked { color: var(--fp-masked); background: var(--fp-masked-paper); padding: 1px .18em; margin: 0 1px; }
.fp-token.fp-revealed { color: var(--fp-revealed); background: var(--fp-revealed-paper); font-weight: 700; }
.fp-token.fp-remasked { color: var(--fp-remasked); background: var(--fp-remasked-paper); padding: 1px .18em;
  margin: 0 1px; text-decoration: underline wavy; font-weight: 700; }
.fp-legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: .5rem 0;
  font-size: .9rem; color: var(--body-text-color); }
.fp-legend li { margin: 0; } .fp-legend svg { width: 22px; height: 10px; vertical-align: middle; }
.fp-progress { display: flex; align-items: center; flex-wrap: wrap; gap: .25rem .75rem; margin: 0 0 .75rem;
  font-variant-numeric: tabular-nums; min-height: 1.5rem; }
.fp-progress progress { flex: 1 1 8rem; max-width: 22rem; height: .6rem; appearance: none; border: 0;
  border-radius: 99px; overflow: hidden; background: var(--fp-masked-paper); }
.fp-progress progress::-webkit-progress-bar { background: var(--fp-masked-paper); }
.fp-progress progress::-webkit-progress-value { background: var(--fp-0); transition: width .1s; }
.fp-progress progress::-moz-progress-bar { background: var(--fp-0); }
.fp-charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 280px), 1fr)); gap: 1rem;
  margin-top: 1rem; }
.fp-chart { margin: 0; min-width: 0; } .fp-chart > svg { width: 100%; height: auto; display: block; }
.fp-chart text { fill: var(--body-text-color); font-size: 11px; font-family: system-ui, sans-serif; }
.fp-chart text.fp-title { font-size: 12.5px; font-weight: 600; }
.fp-grid { stroke: var(--border-color-primary); stroke-width: 1; }
.fp-here { stroke: var(--body-text-color); stroke-width: 1.5; stroke-dasharray: 4 3; }
.fp-line polyline { fill: none; stroke: var(--fp-ink); stroke-width: 2; }
.fp-line circle, .fp-line rect, .fp-line path { fill: var(--fp-ink); stroke: var(--fp-ink); stroke-width: 1.5; }
.fp-line-0 { --fp-ink: var(--fp-0); }
.fp-line-1 { --fp-ink: var(--fp-1); } .fp-line-1 polyline { stroke-dasharray: 6 3; }
.fp-line-2 { --fp-ink: var(--fp-2); }
.fp-line-3 { --fp-ink: var(--fp-3); } .fp-line-3 polyline { stroke-dasharray: 2 3; }
.fp-images { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(30%, 120px), 1fr)); gap: .75rem; }
.fp-images figure { margin: 0; text-align: center; font-size: .85rem; }
.fp-images svg { width: 100%; height: auto; border: 1px solid var(--border-color-primary); border-radius: 4px; }
.fp-images image { image-rendering: pixelated; }
.fp-images rect.fp-masked { fill: var(--fp-masked-paper); stroke: var(--fp-masked); stroke-width: .15;
  stroke-dasharray: .5 .5; }
.fp-images rect.fp-remasked { fill: var(--fp-remasked-paper); stroke: var(--fp-remasked); stroke-width: .3; }
.fp-images rect.fp-revealed { fill: none; stroke: #00c48c; stroke-width: .45; }
.fp-table { overflow-x: auto; } .fp-table table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.fp-table caption { text-align: left; font-weight: 600; padding: .5rem 0; }
.fp-table th, .fp-table td { padding: .3rem .75rem; text-align: right; border: 0;
  border-bottom: 1px solid var(--border-color-primary); }
.fp-table thead th { border-bottom-width: 2px; }
.fp-table th:first-child, .fp-table td:first-child { text-align: left; }
.fp-note { color: var(--body-text-color); max-width: 75ch; margin: .75rem 0; }
.fp-refusal { border-left: 4px solid var(--fp-remasked); background: var(--fp-remasked-paper);
  color: var(--fp-remasked); padding: .75rem 1rem; border-radius: 6px; font-weight: 600; }
#fp-text-view .error, #fp-images-view .error { display: none; }
#fp-text-view .clear-status, #fp-images-view .clear-status { display: none; }
footer { opacity: .85; }
"""


def look() -> dict[str, Any]:
    """Theme and styles, as `launch` and `mount_gradio_app` take them. Nothing of it comes from another machine."""
    import gradio as gr

    theme = gr.themes.Base(
        primary_hue=gr.themes.colors.blue, neutral_hue=gr.themes.colors.slate, font=FONTS, font_mono=MONO
    ).set(
        body_text_color_subdued="*neutral_600",  # the usual grey is too pale to read
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_700",
        block_title_text_color="*neutral_800",
        block_title_text_color_dark="*neutral_100",
        block_radius="10px",
        button_large_radius="8px",
        input_radius="6px",
    )
    return {"theme": theme, "css": CSS, "footer_links": ["settings"]}
