"""One module per chart: which series it reads and its Plotly figure. The browser only fills in points."""
