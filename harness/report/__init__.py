"""What is made of results: statistics, tables, plots, a page. The only room that may load scipy, polars, matplotlib and
jinja2 (extra `report`); nothing of it is needed to run."""
