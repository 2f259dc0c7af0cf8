"""The page's only style sheet: light, dark and print, by colours with names."""

# Colours of the stages in bars; their number is pass_tables.MOST_STAGES.
_LIGHT = ("#2f6db5", "#e0932f", "#4f9a63", "#b5485d", "#7a62b8", "#8a6d4f", "#3c9aa8", "#c26aa5", "#7d8b2f", "#7b8794")
_DARK = ("#6aa5ea", "#f0b35e", "#79c78d", "#e5808f", "#a994e6", "#c2a17f", "#6cc7d4", "#e39fca", "#b4c462", "#a9b3bd")

CSS = """
:root{color-scheme:light dark;--page:#fff;--card:#f6f7f9;--ink:#1c2126;--soft:#59636e;--rule:#d5dae0;--before:#a8560a;
--after:#1f5fae;--bad:#b3261e;--good:#1b6e3c;LIGHT}
@media (prefers-color-scheme:dark){:root{--page:#14171a;--card:#1e2328;--ink:#e6e9ec;--soft:#a4aeb8;--rule:#3a424b;
--before:#f0a35e;--after:#7db4f5;--bad:#ff8a80;--good:#7fd69b;DARK}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:80rem;background:var(--page);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.2;margin:0}h2{font-size:1.2rem;margin:2.5rem 0 .75rem}
header p,.none{color:var(--soft);margin:.4rem 0}
nav{margin:.75rem 0 1.5rem;display:flex;flex-wrap:wrap;gap:.25rem 1rem}a{color:var(--after)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(10.5rem,100%),1fr));gap:.75rem;margin:0}
.tiles>div,figure{background:var(--card);border:1px solid var(--rule);border-radius:.5rem;padding:.75rem}
.tiles dt{color:var(--soft);font-size:.85rem}.tiles dd{margin:0}.tiles b{display:block;font-size:1.1rem;line-height:1.5}
.tiles span{color:var(--soft);font-size:.85rem}
.alert{border-left:4px solid var(--before);background:var(--card);padding:.5rem .75rem;margin:.75rem 0}
.alert.bad{border-color:var(--bad)}
div.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:1rem}
figure{margin:0;min-width:0}figcaption{font-weight:600;margin-bottom:.25rem}
.plot{display:block;width:100%;height:auto;max-width:36rem;margin:auto}
.plot text{fill:var(--soft);font-size:12px;font-family:system-ui,sans-serif}
.plot .grid{stroke:var(--rule)}.diagonal{stroke:var(--soft);stroke-dasharray:3 4;fill:none}
.line{fill:none;stroke-width:2}.line0{stroke:var(--before);stroke-dasharray:6 4}.line1{stroke:var(--after)}
.dot0{fill:var(--before)}.dot1{fill:var(--after)}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--soft);font-size:.9rem}
.scroll{overflow-x:auto;margin:.5rem 0 1rem;border:1px solid var(--rule);border-radius:.5rem}
figure .scroll{max-height:20rem;overflow-y:auto}
:focus-visible{outline:2px solid var(--after);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.875rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:.5rem .75rem;color:var(--ink)}
th,td{padding:.35rem .6rem;text-align:right;white-space:nowrap;border-top:1px solid var(--rule)}
th{font-weight:600}thead th{color:var(--soft);vertical-align:bottom;white-space:normal;overflow-wrap:normal}
th:first-child,.w{text-align:left}td.w{white-space:normal;min-width:6rem}td.w:last-child{min-width:16rem}
tbody th{font-weight:400}tbody tr:nth-child(even){background:var(--card)}
.live{color:var(--good)}.refused{color:var(--bad)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;margin:.5rem 0;font-size:.875rem}
.swatch{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.4rem;vertical-align:-1px}
.bar{display:block;width:100%;min-width:12rem;height:1rem;print-color-adjust:exact}
.swatch{print-color-adjust:exact}
STAGES
@media (max-width:30rem){.plot text{font-size:15px}}
@media print{:root{--page:#fff;--card:#fff;--ink:#000;--soft:#333;--rule:#999;--before:#a8560a;--after:#1f5fae;--bad:#b3261e;
--good:#1b6e3c;LIGHT}body{font-size:10pt;max-width:none;padding:0}nav{display:none}.scroll,figure .scroll{overflow:visible;
max-height:none}table{font-size:6.5pt;overflow-wrap:normal}th,td{padding:.15rem .2rem}td.w,td.w:last-child,.bar{min-width:0}
th:first-child{white-space:nowrap}figure details{display:none}
div.grid{grid-template-columns:1fr 1fr}figure,tr,.alert{break-inside:avoid}}
"""


def style_sheet() -> str:
    def named(colours: tuple[str, ...]) -> str:
        return ";".join(f"--s{place}:{colour}" for place, colour in enumerate(colours))

    stages = "".join(
        f"rect.s{place}{{fill:var(--s{place})}}i.s{place}{{background:var(--s{place})}}" for place in range(len(_LIGHT))
    )
    return CSS.replace("LIGHT", named(_LIGHT)).replace("DARK", named(_DARK)).replace("STAGES", stages).strip()
