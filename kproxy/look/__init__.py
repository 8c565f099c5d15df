"""What people look at: lines, stories, reports, the page in a browser."""
