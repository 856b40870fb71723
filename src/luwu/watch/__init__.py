"""`luwu watch`: what runs do, on a page or in a terminal. It reads run folders and asks servers."""
