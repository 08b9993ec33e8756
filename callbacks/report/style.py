"""The page's style sheet and its few lines of script: both inside the page, nothing from elsewhere."""

STYLE = (
    """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2127;--dim:#5d6772;--card:#f6f7f9;--edge:#dde1e6;
--c0:#0b66c3;--c1:#c2410c;--c2:#15803d;--c3:#9333ea;--c4:#a16207;--c5:#0e7490;--c6:#be185d;--c7:#57534e}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e9ed;--dim:#9aa5b1;--card:#1d2126;--edge:#343b44;
--c0:#6cb2ff;--c1:#ff9a5c;--c2:#5fd38a;--c3:#c99bff;--c4:#e5c04a;--c5:#55cfe6;--c6:#ff86b8;--c7:#b8b2aa}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1200px;padding:16px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
h1{font-size:1.5rem;margin:.2em 0;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:1.6em 0 .6em}
h3{font-size:1rem;margin:1.2em 0 .5em;color:var(--dim);overflow-wrap:anywhere}
#filter{display:block;width:100%;max-width:26em;margin:0 0 12px;padding:6px 12px;font:inherit;color:inherit;
background:var(--card);border:1px solid var(--edge);border-radius:99px}#filter[hidden]{display:none}
p{margin:.4em 0}.dim,.note{color:var(--dim);font-size:.87rem}
.state{display:inline-block;border:1px solid var(--edge);border-radius:99px;padding:0 .7em;font-size:.87rem}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:14px 0}.tile{flex:1 1 130px;min-width:0;max-width:100%}
.tile,figure,.box{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:10px 12px;margin:0}
.tile b{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums}.tile span{display:block;color:var(--dim);
font-size:.8rem;line-height:1.35;overflow-wrap:anywhere}
.charts,.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:12px}.cards{grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr))}
figure{min-width:0;display:flex;flex-direction:column}figure[hidden],.group[hidden]{display:none}
figcaption{font-weight:600;margin-bottom:4px;overflow-wrap:anywhere}figure>svg:not(.bar){margin-top:auto}
svg{display:block;width:100%;height:auto}svg text{fill:var(--dim);font-size:13px}
svg.bar{height:22px;border-radius:4px;margin-bottom:8px}
.line{fill:none;stroke-width:2;stroke-linejoin:round;vector-effect:non-scaling-stroke}.dashed{stroke-dasharray:6 4}
.line.faint{stroke-width:1.2;opacity:.45}.key.faint{opacity:.45;border-top-width:2px}
.grid{stroke:var(--edge);stroke-width:1}.cursor{stroke:var(--dim);stroke-width:1}
.cursor[hidden],#tip[hidden]{display:none}.box td:first-child{min-width:8.5em}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:.82rem;color:var(--dim)}
.key{display:inline-block;width:16px;height:0;border-top:3px solid var(--k);margin-right:6px;vertical-align:middle}
.key.dashed{border-top-style:dashed}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.87rem}
td,th{text-align:left;padding:3px 10px 3px 0;border-bottom:1px solid var(--edge);vertical-align:top}
td{overflow-wrap:anywhere}.numbers td{overflow-wrap:normal;white-space:nowrap;font-variant-numeric:tabular-nums}
.numbers td:first-child{white-space:normal}.scroll th{white-space:nowrap}
th{font-weight:600;color:var(--dim)}pre{overflow-x:auto;font-size:.78rem;line-height:1.35;margin:.4em 0}
summary{cursor:pointer;font-weight:600}details.box{margin-top:10px}
#tip{position:fixed;pointer-events:none;background:var(--bg);border:1px solid var(--edge);border-radius:6px;
padding:4px 8px;font-size:.8rem;max-width:90vw;z-index:1;white-space:pre}
"""
    + "".join(
        f".c{i}{{--k:var(--c{i});stroke:var(--c{i})}}circle.c{i},rect.c{i}{{fill:var(--c{i});stroke:none}}"
        for i in range(8)
    )
    + """
@media (max-width:600px){body{padding:12px}svg text{font-size:16px}.numbers td{padding-right:6px}
.tile{flex-basis:calc(50% - 5px)}
.stacked thead{display:none}.stacked tr{display:block;padding:6px 0;border-bottom:1px solid var(--edge)}
.stacked td{display:flex;justify-content:space-between;gap:14px;border:0;padding:1px 0;white-space:normal;text-align:right}
.stacked td::before{content:attr(data-label);color:var(--dim);text-align:left;overflow-wrap:anywhere}
.stacked td[data-label=""],.stacked td:first-child{font-weight:600}.stacked td[data-label=""]{text-align:left}
.stacked td[data-label=""]::before{display:none}
.box td:first-child{min-width:6.5em}}
@media print{:root{--bg:#fff;--fg:#000;--dim:#444;--card:#fff;--edge:#bbb;--c0:#0b66c3;--c1:#c2410c;--c2:#15803d;
--c3:#9333ea;--c4:#a16207;--c5:#0e7490;--c6:#be185d;--c7:#57534e}
body{max-width:none;padding:0;font-size:11px}.charts{grid-template-columns:1fr 1fr}
figure,.box,.tile,tr{break-inside:avoid}#tip{display:none}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
)

SCRIPT = """
(function(){
var tip=document.createElement('div');tip.id='tip';tip.hidden=true;document.body.appendChild(tip);
document.querySelectorAll('svg[data-lines]').forEach(function(svg){
 var lines=JSON.parse(svg.dataset.lines),s=JSON.parse(svg.dataset.scale),cursor=svg.querySelector('.cursor');
 function hide(){tip.hidden=true;cursor.setAttribute('hidden','')}
 function show(e){
  var box=svg.getBoundingClientRect(),part=(e.clientX-box.left)/box.width;
  if(part<s.l||part>s.r){hide();return}
  var x=s.x0+(part-s.l)/(s.r-s.l)*(s.x1-s.x0),at=null;
  var text=lines.map(function(line){
   var best=line.p[0];line.p.forEach(function(p){if(Math.abs(p[0]-x)<Math.abs(best[0]-x))best=p});
   if(at===null||Math.abs(best[0]-x)<Math.abs(at-x))at=best[0];
   return line.n+'  '+best[1]});
  tip.textContent='epoch '+(+at.toFixed(2))+'\\n'+text.join('\\n');
  tip.hidden=false;
  tip.style.left=Math.max(4,Math.min(e.clientX+12,innerWidth-tip.offsetWidth-8))+'px';
  tip.style.top=Math.min(e.clientY+12,innerHeight-tip.offsetHeight-8)+'px';
  var place=(s.l+(at-s.x0)/(s.x1-s.x0)*(s.r-s.l))*480;
  cursor.setAttribute('x1',place);cursor.setAttribute('x2',place);cursor.removeAttribute('hidden')}
 svg.addEventListener('pointermove',show);svg.addEventListener('pointerdown',show);
 svg.addEventListener('pointerleave',hide)});
document.querySelectorAll('.state[data-now]').forEach(function(state){
 function look(){
  var quiet=Date.now()/1000-state.dataset.now;
  if(quiet>state.dataset.patience)
   state.textContent='no news for '+Math.round(quiet/60)+' min: it was killed, or a step is long'}
 look();setInterval(look,10000)});
var field=document.getElementById('filter');
if(field){
 var choose=function(){
  var words=field.value.toLowerCase().split(' ');
  document.querySelectorAll('.group').forEach(function(group){
   var title=(group.querySelector('h3')||{textContent:''}).textContent.toLowerCase(),left=0;
   group.querySelectorAll('figure').forEach(function(figure){
    var name=title+' '+figure.dataset.name;
    figure.hidden=!words.every(function(word){return name.indexOf(word)>=0});
    left+=figure.hidden?0:1});
   group.hidden=!left});
  try{sessionStorage.filter=field.value}catch(e){}};
 field.hidden=false;
 try{field.value=sessionStorage.filter||''}catch(e){}
 field.addEventListener('input',choose);choose()}
addEventListener('beforeprint',function(){document.querySelectorAll('details').forEach(function(d){d.open=true})});
})();
"""
