"""Pictures of signal events as SVG, drawn as UDOT's ATSPM tools draw them: the same axes, marks and colours.

`signal_view` prepares what is drawn, `canvas` draws, and each other module is one kind of picture. `page` puts them on
one page.
"""
